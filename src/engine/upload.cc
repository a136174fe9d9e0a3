#include "engine/upload.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/convert.h"
#include "base/parallel.h"

namespace tendon {
namespace {

constexpr int64_t kPartElements = int64_t{1} << 17;  // what one thread converts in one go
constexpr size_t kGapBytes = 256;

// Elements first..first+count of a piece, and where in the window they go.
struct Part {
  const UploadPiece* piece;
  int64_t first, count;
  size_t at;
};

// Cuts pieces into windows, one after the other.
class Cutter {
 public:
  Cutter(std::span<const UploadPiece> pieces, size_t window_bytes) : pieces_(pieces), window_bytes_(window_bytes) {}

  // The next window: its parts, first byte in the block and length. False at the end.
  bool next(std::vector<Part>& parts, size_t& begin, size_t& bytes) {
    parts.clear();
    while (piece_ < pieces_.size() && pieces_[piece_].bytes() == 0) ++piece_;
    if (piece_ == pieces_.size()) return false;
    begin = position();
    bytes = 0;
    while (piece_ < pieces_.size() && position() <= begin + bytes + kGapBytes && position() - begin < window_bytes_) {
      const UploadPiece& piece = pieces_[piece_];
      const size_t each = dtype_bytes(piece.dtype);
      const size_t at = position() - begin;
      const auto room = static_cast<int64_t>((window_bytes_ - at) / each);
      const int64_t count = std::min(piece.host.elements() - element_, room);
      for (int64_t done = 0; done < count; done += kPartElements) {
        parts.push_back(
            {&piece, element_ + done, std::min(kPartElements, count - done), at + static_cast<size_t>(done) * each});
      }
      bytes = at + static_cast<size_t>(count) * each;
      element_ += count;
      if (element_ < piece.host.elements()) break;  // the window is full
      ++piece_;
      element_ = 0;
    }
    return true;
  }

 private:
  size_t position() const {
    return pieces_[piece_].offset + static_cast<size_t>(element_) * dtype_bytes(pieces_[piece_].dtype);
  }

  std::span<const UploadPiece> pieces_;
  size_t window_bytes_;
  size_t piece_ = 0;
  int64_t element_ = 0;
};

// Nothing is under way when it goes.
struct Waiting {
  Backend& backend;
  ~Waiting() {
    try {
      backend.finish_uploads();
    } catch (const std::exception&) {
      // What went wrong was thrown by the call that saw it first.
    }
  }
};

}  // namespace

void upload_pieces(Backend& backend, void* block, std::span<const UploadPiece> pieces, size_t window_bytes) {
  size_t longest = 0;
  for (const UploadPiece& piece : pieces) {
    TENDON_CHECK(piece.host.contiguous() && can_convert(piece.host.dtype, piece.dtype), "cannot upload {} as {}",
                 dtype_name(piece.host.dtype), dtype_name(piece.dtype));
    longest = std::max(longest, piece.offset + piece.bytes());
  }
  if (pieces.empty()) return;
  window_bytes = std::min(window_bytes, longest - pieces.front().offset);
  if (window_bytes == 0) return;
  const HostBlock windows[2] = {HostBlock(backend, window_bytes), HostBlock(backend, window_bytes)};
  const Waiting waiting{backend};

  Cutter cutter(pieces, window_bytes);
  std::vector<Part> parts;
  size_t begin = 0;
  size_t bytes = 0;
  for (int turn = 0; cutter.next(parts, begin, bytes); turn ^= 1) {
    char* const window = static_cast<char*>(windows[turn].data());
    parallel_for(std::ssize(parts), 1, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        const Part& part = parts[static_cast<size_t>(i)];
        convert_range(part.piece->host, part.first, part.count, part.piece->dtype, window + part.at);
      }
    });
    backend.finish_uploads();  // of the other window, which went on meanwhile
    backend.begin_upload(static_cast<char*>(block) + begin, window, bytes);
  }
  backend.finish_uploads();
}

}  // namespace tendon
