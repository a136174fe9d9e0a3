"""The released openpi client against `tendon serve`: what robots' programs do with it, checked number by number.

    robots.py CASES.json

CASES.json (written by openpi_test.cc) says which servers run and what they must answer. The servers `droid` and
`aloha` have a network whose output is noise - bias, so that the robot's numbers follow from formulas, written down
here once more; `whole` is a whole network, whose answer depends on everything that is sent.
"""

import json
import os
import sys
import threading
import traceback

import numpy as np
import websockets.exceptions
from openpi_client import action_chunk_broker, image_tools, websocket_client_policy
from openpi_client.runtime import environment, subscriber
from openpi_client.runtime.agents import policy_agent

if sys.version_info >= (3, 9):  # with 3.8 the client's own file cannot be imported
    from openpi_client.runtime import runtime

ACTION_DIM = 32


def connect(server, **options):
    return websocket_client_policy.WebsocketClientPolicy(host="127.0.0.1", port=server["port"], **options)


def noise(server, seed):
    return np.random.default_rng(seed).standard_normal((server["horizon"], ACTION_DIM)).astype(np.float32)


def near(got, want, what):
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    worst = np.abs(got - want).max()
    assert worst < 1e-5, f"{what}: off by {worst}"


def refused(call, kind, *parts):
    try:
        call()
    except kind as error:
        for part in parts:
            assert part in str(error), f"'{part}' is not in: {error}"
        return
    raise AssertionError(f"no {kind.__name__}, expected one with {parts}")


def unnormalized(server, raw):
    """openpi's Unnormalize (z-score) of network output (rows, 32), cut to the robot's width."""
    width = len(server["mean"])
    return raw[:, :width].astype(np.float64) * (np.array(server["std"]) + 1e-6) + np.array(server["mean"])


def picture(seed, height=224, width=224):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


# --- DROID: joint positions relative to the state, gripper absolute ---


def droid_observation(server, seed, **changes):
    random = np.random.default_rng(seed)
    observation = {
        "observation/exterior_image_1_left": image_tools.resize_with_pad(picture(seed, 180, 320), 224, 224),
        "observation/wrist_image_left": picture(seed + 1),
        "observation/joint_position": random.uniform(-1, 1, 7),
        "observation/gripper_position": random.uniform(0, 1, 1),
        "prompt": "put the marker in the cup",
        "tendon/noise": noise(server, seed),
    }
    observation.update(changes)
    return observation


def droid_actions(server, observation):
    actions = unnormalized(server, observation["tendon/noise"] - np.array(server["bias"], dtype=np.float32))
    actions[:, :7] += observation["observation/joint_position"]
    return actions


def answers_by_formula(server):
    policy = connect(server)
    assert policy.get_server_metadata()["tendon"]["preset"] == server["preset"]
    assert policy.get_server_metadata().get("reset_pose") is None
    for call in range(3):
        observation = droid_observation(server, call)
        reply = policy.infer(observation)
        assert reply["actions"].dtype == np.float64
        near(reply["actions"], droid_actions(server, observation), f"call {call}")
        assert set(reply) == {"actions", "policy_timing", "server_timing"}
        assert set(reply["policy_timing"]) == {"infer_ms"}
        timing = {"infer_ms", "queue_ms"} | ({"prev_total_ms"} if call else set())
        assert set(reply["server_timing"]) == timing, reply["server_timing"]
        assert all(isinstance(ms, float) and ms >= 0 for ms in reply["server_timing"].values())


def big_frames(server):
    """Field case 17."""
    frames = {f"observation/{key}": picture(1, 1080, 1920) for key in ("exterior_image_1_left", "wrist_image_left")}
    observation = droid_observation(server, 5, **frames)
    near(connect(server).infer(observation)["actions"], droid_actions(server, observation), "1080p")


def broker_hands_out_rows(server):
    """Pitfall 6: one row a step, a new request behind the last one."""
    horizon = server["horizon"]
    broker = action_chunk_broker.ActionChunkBroker(connect(server), horizon)
    first, second = droid_observation(server, 11), droid_observation(server, 12)
    for observation in (first, second):
        want = droid_actions(server, observation)
        for row in range(horizon):
            # Only the first observation of a chunk is sent.
            reply = broker.infer(observation if row == 0 else {"never": "sent"})
            near(reply["actions"], want[row], f"row {row}")
            assert reply["policy_timing"]["infer_ms"] > 0
    broker.infer(first)
    broker.reset()
    near(broker.infer(second)["actions"], droid_actions(server, second)[0], "after reset")


def errors_are_told(server):
    """Field case 15: text, then close 1011; other clients go on."""
    other, policy = connect(server), connect(server)
    observation = droid_observation(server, 3)
    broken = dict(observation)
    del broken["observation/joint_position"]
    refused(lambda: policy.infer(broken), RuntimeError, "Error in inference server:\n", "observation/joint_position")
    refused(lambda: policy.infer(observation), websockets.exceptions.ConnectionClosed, "1011")
    near(other.infer(observation)["actions"], droid_actions(server, observation), "the other client")
    dated = dict(observation, **{"observation/gripper_position": np.array(["2026-01-01"], "M8[D]")})
    refused(lambda: other.infer(dated), RuntimeError, "observation/gripper_position", "M8")


def keys_are_checked(server):
    refused(lambda: connect(server), Exception, "401")
    refused(lambda: connect(server, api_key="wrong"), Exception, "401")
    policy = connect(server, api_key=server["api_key"])
    observation = droid_observation(server, 3)
    near(policy.infer(observation)["actions"], droid_actions(server, observation), "with a key")


def clients_at_once(server):
    """Each of several clients gets its own answers."""
    failures = []

    def robot(number):
        try:
            policy = connect(server)
            for call in range(5):
                observation = droid_observation(server, 100 * number + call)
                near(policy.infer(observation)["actions"], droid_actions(server, observation), f"client {number}")
        except BaseException as error:  # noqa: BLE001: shown by the main thread
            failures.append(error)

    robots = [threading.Thread(target=robot, args=(number,)) for number in range(1, 5)]
    for thread in robots:
        thread.start()
    for thread in robots:
        thread.join()
    assert not failures, failures


# --- ALOHA: openpi's runtime loop moves a robot whose joints go where they are told ---


class Arms(environment.Environment):
    def __init__(self, server):
        self.server, self.seed, self.resets = server, 0, 0
        self.seen, self.applied = [], []

    def reset(self):
        self.resets += 1
        self.state = np.full(14, 0.1)

    def is_episode_complete(self):
        return False

    def get_observation(self):
        self.seed += 1
        frame = image_tools.convert_to_uint8(np.random.default_rng(self.seed).random((240, 320, 3)))
        frame = np.transpose(image_tools.resize_with_pad(frame, 224, 224), (2, 0, 1))
        self.seen.append({"state": self.state.copy(), "images": {"cam_high": frame}, "tendon/noise": noise(self.server, self.seed)})
        return self.seen[-1]

    def apply_action(self, action):
        self.applied.append(action["actions"])
        self.state = np.clip(action["actions"], -1, 1)


class Counter(subscriber.Subscriber):
    def __init__(self):
        self.starts = self.steps = self.ends = 0

    def on_episode_start(self):
        self.starts += 1

    def on_step(self, observation, action):
        self.steps += 1

    def on_episode_end(self):
        self.ends += 1


SIGNS = np.where(np.isin(np.arange(14), [1, 2, 8, 9]), -1.0, 1.0)


def aloha_actions(server, observation):
    """openpi's output transforms: unnormalise, add the state (in the model's signs), then signs and grippers."""
    actions = unnormalized(server, observation["tendon/noise"] - np.array(server["bias"], dtype=np.float32))
    joints = ~np.isin(np.arange(14), [6, 13])
    actions[:, joints] += (SIGNS * observation["state"])[joints]
    actions *= SIGNS
    actions[:, ~joints] = (actions[:, ~joints] + 0.5476 + 0.6213) / (1.4910 + 0.6213)
    return actions


def runtime_drives_a_robot(server):
    policy = connect(server)
    assert policy.get_server_metadata()["reset_pose"] == [0, -1.5, 1.5, 0, 0, 0]
    arms, counter = Arms(server), Counter()
    chunk, steps, episodes = 10, 24, 2
    agent = policy_agent.PolicyAgent(policy=action_chunk_broker.ActionChunkBroker(policy, chunk))
    loop = runtime.Runtime(environment=arms, agent=agent, subscribers=[counter], max_hz=500, num_episodes=episodes, max_episode_steps=steps)
    loop.run_in_new_thread().join()
    taken = steps + 1  # the runtime counts after the step
    assert (counter.starts, counter.steps, counter.ends) == (episodes, episodes * taken, episodes)
    assert arms.resets == episodes + 1 and len(arms.applied) == episodes * taken
    for step, got in enumerate(arms.applied):
        first = step - (step % taken) % chunk  # of its chunk
        near(got, aloha_actions(server, arms.seen[first])[step - first], f"step {step}")


# --- the zoo of types: a network that answers differently to different observations ---


def types_do_not_matter(server):
    """Field case 14."""
    state = np.array([0.5, -0.25, 0.125, 1, 0, -1, 0.75])  # exact in every float type
    base = droid_observation(server, 21, **{"observation/joint_position": state, "observation/gripper_position": np.array([0.5])})
    policy = connect(server)
    plain = want = policy.infer(base)["actions"].tobytes()

    def same(what, **changes):
        got = policy.infer(dict(base, **changes))["actions"].tobytes()
        assert got == want, f"{what}: other actions"

    for value in (0.5, np.array(0.5), np.float32(0.5), np.float64(0.5), np.float16(0.5), [0.5], np.array([0.5], ">f2")):
        same(f"gripper {value!r}", **{"observation/gripper_position": value})
    for kind in ("<f2", ">f2", "<f4", ">f4", "<f8", ">f8"):
        same(f"joints {kind}", **{"observation/joint_position": state.astype(kind)})
    same("joints as list", **{"observation/joint_position": state.tolist()})
    prompt = base["prompt"]
    for value in (prompt.encode(), np.str_(prompt), np.array(prompt), np.array(prompt.encode()), np.array([prompt])):
        same(f"prompt {value!r}", prompt=value)
    frame = base["observation/wrist_image_left"]
    for kind in ("<i2", ">i2", "<u4", ">i8"):
        same(f"frame {kind}", **{"observation/wrist_image_left": frame.astype(kind)})
    same("frame channels first", **{"observation/wrist_image_left": np.ascontiguousarray(np.transpose(frame, (2, 0, 1)))})

    whole = dict(base, **{"observation/joint_position": np.array([1, 0, 1, 1, 0, 0, 1])})
    want = policy.infer(whole)["actions"].tobytes()
    for kind in ("|b1", "|i1", "|u1", "<i2", ">i2", "<u2", ">u4", "<i4", ">i8", "<u8"):
        same(f"joints {kind}", **{"observation/joint_position": whole["observation/joint_position"].astype(kind)})

    for change in ({"prompt": "open the drawer"}, {"observation/gripper_position": 0.75}):
        assert policy.infer(dict(base, **change))["actions"].tobytes() != plain, f"{change} changes nothing"


def resizing_is_the_clients(server):
    """Field case 8: frames as they are give the bytes of frames that openpi's image_tools resized."""
    policy, side = connect(server), server["image_size"]
    for height, width in ((480, 640), (640, 480), (720, 1280), (360, 640), (53, 37)):
        frame = picture(height, height, width)
        base = droid_observation(server, 31, **{"observation/wrist_image_left": frame})
        resized = dict(base, **{"observation/wrist_image_left": image_tools.resize_with_pad(frame, side, side)})
        got, want = (policy.infer(observation)["actions"].tobytes() for observation in (base, resized))
        assert got == want, f"{height}×{width}: other actions"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        servers = json.load(file)
    for name, checks in {
        "droid": [answers_by_formula, big_frames, broker_hands_out_rows, errors_are_told, clients_at_once],
        "keyed": [keys_are_checked],
        "aloha": [runtime_drives_a_robot] if sys.version_info >= (3, 9) else [],
        "whole": [types_do_not_matter, resizing_is_the_clients],
    }.items():
        for check in checks:
            check(servers[name])
            print(f"{name}: {check.__name__}", flush=True)


if __name__ == "__main__":
    # The client never closes its connection, and the threads of websockets 11 would keep the process alive.
    code = 1
    try:
        main()
        code = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
