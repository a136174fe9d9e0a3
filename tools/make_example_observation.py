#!/usr/bin/env python3
"""Draws the pictures of examples/observation: one small tabletop scene seen by three cameras.

The scene is a list of shaded boxes projected by a pinhole camera and painted from far to near; nothing is photographed
or taken from a data set. Needs numpy and pillow. Run from the repository root:
    python3 tools/make_example_observation.py
"""

import pathlib

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

OUT = pathlib.Path(__file__).resolve().parent.parent / "examples" / "observation"
LIGHT = np.array([0.35, -0.45, 0.82])  # towards the lamp; x right, y away from the robot, z up, metres
SUPERSAMPLING = 2

RED, BLUE, GREEN, YELLOW = (205, 52, 46), (48, 92, 190), (62, 150, 78), (226, 178, 50)
STEEL, DARK = (92, 94, 100), (44, 45, 50)


def box(center, size, color, turn=0.0, tilt=0.0):
    """Faces [(four corners, colour)] of a box; turn about z, then tilt about y, radians."""
    cos_t, sin_t, cos_p, sin_p = np.cos(turn), np.sin(turn), np.cos(tilt), np.sin(tilt)
    rotation = np.array([[cos_t, -sin_t, 0], [sin_t, cos_t, 0], [0, 0, 1]]) @ np.array(
        [[cos_p, 0, sin_p], [0, 1, 0], [-sin_p, 0, cos_p]])
    faces = []
    for axis in range(3):
        for sign in (-1.0, 1.0):
            a, b = (axis + 1) % 3, (axis + 2) % 3
            corners = []
            for u, v in ((-1, -1), (1, -1), (1, 1), (-1, 1)):
                corner = np.zeros(3)
                corner[axis], corner[a], corner[b] = sign, u, v
                corners.append(np.array(center) + rotation @ (corner * np.array(size) / 2))
            normal = rotation[:, axis] * sign
            faces.append((np.array(corners), normal, color))
    return faces


def scene():
    """(solid boxes, boxes that throw a shadow on the table)"""
    cubes = [
        box((-0.02, 0.34, 0.025), (0.05, 0.05, 0.05), RED, turn=0.3),
        box((0.13, 0.42, 0.02), (0.04, 0.04, 0.04), BLUE, turn=-0.4),
        box((-0.17, 0.45, 0.03), (0.06, 0.06, 0.06), GREEN, turn=0.7),
        box((0.05, 0.52, 0.02), (0.04, 0.08, 0.04), YELLOW, turn=0.15),
    ]
    arms = []
    for side in (-1.0, 1.0):
        hand_x = side * 0.13
        arms.append(box((side * 0.30, 0.24, 0.24), (0.34, 0.055, 0.055), DARK, turn=-side * 0.12, tilt=-side * 0.55))
        arms.append(box((hand_x + side * 0.04, 0.27, 0.155), (0.07, 0.09, 0.05), STEEL))
        for finger in (-1.0, 1.0):
            arms.append(box((hand_x + side * 0.02, 0.27 + finger * 0.035, 0.10), (0.022, 0.014, 0.09), DARK))
    return cubes, arms


class Camera:
    def __init__(self, position, target, field_of_view_deg, width, height):
        self.position = np.array(position, float)
        forward = np.array(target, float) - self.position
        self.forward = forward / np.linalg.norm(forward)
        right = np.cross(self.forward, [0, 0, 1])
        self.right = right / np.linalg.norm(right)
        self.down = np.cross(self.forward, self.right)
        self.width, self.height = width * SUPERSAMPLING, height * SUPERSAMPLING
        self.focal = self.width / 2 / np.tan(np.radians(field_of_view_deg) / 2)

    def project(self, points):
        offset = np.asarray(points) - self.position
        depth = np.maximum(offset @ self.forward, 1e-3)
        return [(self.width / 2 + self.focal * x / d, self.height / 2 + self.focal * y / d)
                for x, y, d in zip(offset @ self.right, offset @ self.down, depth)]

    def table(self):
        """(height, width, 3): wood where a pixel's ray meets the table, wall elsewhere."""
        x, y = np.meshgrid(np.arange(self.width) + 0.5, np.arange(self.height) + 0.5)
        ray = (self.forward + ((x - self.width / 2) / self.focal)[..., None] * self.right
               + ((y - self.height / 2) / self.focal)[..., None] * self.down)
        down = np.minimum(ray[..., 2], -1e-4)
        hit = self.position + ray * (-self.position[2] / down)[..., None]
        on_table = (ray[..., 2] < -1e-4) & (np.abs(hit[..., 0]) < 0.62) & (hit[..., 1] > -0.15) & (hit[..., 1] < 0.80)
        grain = (0.5 * np.sin(90 * hit[..., 1] + 6 * np.sin(3 * hit[..., 0])) + 0.5 * np.sin(37 * hit[..., 1] + 1.3)) * 6
        plank = np.where(np.mod(hit[..., 1] + 1.0, 0.19) < 0.004, -26.0, 0.0)
        falloff = 18 * np.exp(-((hit[..., 0] - 0.1) ** 2 + (hit[..., 1] - 0.4) ** 2) / 0.12)
        wood = np.stack([178 + grain, 138 + grain, 98 + 0.8 * grain], -1) + (plank + falloff)[..., None]
        wall = np.array([168.0, 172.0, 176.0]) - (y / self.height * 46)[..., None]
        return np.where(on_table[..., None], wood, wall)

    def render(self, seed):
        cubes, arms = scene()
        light = LIGHT / np.linalg.norm(LIGHT)
        shadow = Image.new("L", (self.width, self.height), 0)
        for faces in cubes + arms:
            for corners, _, _ in faces:
                on_table = corners - light * (corners[:, 2:] / light[2])
                ImageDraw.Draw(shadow).polygon(self.project(on_table), fill=105)
        shadow = np.asarray(shadow.filter(ImageFilter.GaussianBlur(3.0 * SUPERSAMPLING)), float)[..., None] / 255
        image = Image.fromarray(np.clip(self.table() * (1 - shadow), 0, 255).astype(np.uint8))

        faces = [face for solid in cubes + arms for face in solid]
        faces.sort(key=lambda face: -np.linalg.norm(face[0].mean(axis=0) - self.position))
        draw = ImageDraw.Draw(image)
        for corners, normal, color in faces:
            if normal @ (self.position - corners.mean(axis=0)) <= 0:
                continue
            shade = 0.42 + 0.62 * max(0.0, float(normal @ light))
            draw.polygon(self.project(corners), fill=tuple(int(min(255, c * shade)) for c in color))
        image = image.resize((self.width // SUPERSAMPLING, self.height // SUPERSAMPLING), Image.Resampling.BOX)
        noise = np.random.default_rng(seed).normal(0.0, 2.2, (image.height, image.width, 3))
        return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    base = Camera((0.0, -0.20, 0.62), (0.0, 0.36, 0.04), 62, 640, 480)
    left = Camera((-0.19, 0.25, 0.27), (0.0, 0.39, 0.0), 70, 640, 480)
    right = Camera((0.19, 0.25, 0.27), (-0.02, 0.40, 0.0), 70, 320, 240)
    base.render(1).save(OUT / "base.jpg", quality=88)
    left.render(2).save(OUT / "left_wrist.jpg", quality=88)
    # A palette keeps the noisy PNG small and exercises palette decoding.
    right.render(3).quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
        OUT / "right_wrist.png", optimize=True)
