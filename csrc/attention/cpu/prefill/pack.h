// A tile of K and V from the paged cache into the panels that the micro-kernel multiplies with:
//
//   keys    panels of kPanel tokens    [panel][unit of head_dim][token]    (transposed)
//   values  panels of kPanel dims      [panel][unit of tokens][dim]        (the last may be
//   narrower)
//
// Paid once per tile for all query rows of a unit.
#pragma once

#include "micro_kernel.h"
#include "tile_rows.h"

namespace pagedattn::PAGEDATTN_ISA {

// Sizes of packed operands.
template <typename Kernel>
struct PackedShape {
  explicit PackedShape(int head_dim)
      : head_dim(head_dim),
        key_units(round_up(head_dim / Kernel::kElements, kWidth)),
        dims(round_up(head_dim, kWidth)) {
    static_assert(kTileTokens % Kernel::kPanel == 0 && kWidth % Kernel::kUnitStep == 0);
  }
  static constexpr int kTokenUnits = kTileTokens / Kernel::kElements;

  int head_dim;
  int key_units;  // stride of queries, too; those past head_dim are 0
  int dims;       // row stride of the output

  const float* key_panel(const float* keys, int token) const {
    return keys + int64_t{token} * key_units;
  }
  int panel_width(int dim) const {
    return dims - dim < Kernel::kPanel ? dims - dim : Kernel::kPanel;
  }
  float* value_panel(float* values, int dim) const { return values + int64_t{dim} * kTokenUnits; }
};

// Transposes a square of 32-bit lanes by perfect shuffles.
PAGEDATTN_ALWAYS_INLINE void transpose(Vec rows[kWidth]) {
  Vec shuffled[kWidth];
#pragma GCC unroll 4
  for (int round = 1; round < kWidth; round *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kWidth / 2; ++i) {
      const auto [low, high] = at::vec::interleave2(rows[i], rows[i + kWidth / 2]);
      shuffled[2 * i] = low;
      shuffled[2 * i + 1] = high;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) rows[i] = shuffled[i];
  }
}

// `staging` holds kWidth rows of key_units, zero past head_dim. Rows that are units as they lie in
// the cache are read there.
template <typename Kernel, typename T>
void pack_keys(const PackedShape<Kernel>& shape, const TileRows& rows, float* staging,
               float* keys) {
  const int units = shape.key_units;
  const int end = round_up(rows.last, Kernel::kPanel);
  const bool in_place =
      std::is_same_v<T, typename Kernel::Element> && shape.head_dim == units * Kernel::kElements;
  for (int t = rows.first / Kernel::kPanel * Kernel::kPanel; t < end; t += kWidth) {
    const float* row[kWidth];
    for (int i = 0; i < kWidth; ++i) {
      const char* const key = rows.key[t + i];
      if (in_place) {
        row[i] = reinterpret_cast<const float*>(key);
      } else {
        Kernel::pack_row(reinterpret_cast<const T*>(key), shape.head_dim, staging + i * units);
        row[i] = staging + i * units;
      }
    }
    const int column = t % Kernel::kPanel;
    float* const panel = keys + int64_t{t - column} * units + column;
    for (int u = 0; u < units; u += kWidth) {
      Vec square[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) square[i] = load(row[i] + u);
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) store(panel + (u + i) * Kernel::kPanel, square[i]);
    }
  }
}

// Packs values and says whether all of them are finite.
template <typename Kernel, typename T>
bool pack_values(const PackedShape<Kernel>& shape, const TileRows& rows, float* values) {
  using Ints = at::vec::Vectorized<int32_t>;
  const Ints magnitude(0x7fffffff);
  Ints largest(0);
  const int end = round_up(rows.last, Kernel::kPanel);
  for (int t = rows.first / Kernel::kPanel * Kernel::kPanel; t < end; t += Kernel::kElements) {
    const T* tokens[Kernel::kElements];
    for (int i = 0; i < Kernel::kElements; ++i) {
      tokens[i] = reinterpret_cast<const T*>(rows.value[t + i]);
    }
    const auto pack = [&](int d, float* out, const auto& load_value) {
      Vec elements[Kernel::kElements];
      for (int i = 0; i < Kernel::kElements; ++i) {
        elements[i] = load_value(tokens[i] + d);
        largest = at::vec::maximum(largest, at::vec::cast<int32_t>(elements[i]) & magnitude);
      }
      store(out, Kernel::pack_tokens(elements));
    };
    for (int d = 0; d < shape.dims; d += Kernel::kPanel) {
      const int width = shape.panel_width(d);
      float* const out = shape.value_panel(values, d) + t / Kernel::kElements * width;
      int i = 0;
      for (; i < width && d + i + kWidth <= shape.head_dim; i += kWidth) {
        pack(d + i, out + i, [](const T* p) { return load(p); });
      }
      if (i < width) {
        pack(d + i, out + i, [&](const T* p) { return load_tail(p, shape.head_dim - d - i); });
      }
    }
  }
  int32_t lanes[kWidth];
  largest.store(lanes);
  bool finite = true;
  for (const int32_t lane : lanes) finite = finite && lane < 0x7f800000;
  return finite;
}

// Packing of one storage type.
template <typename Kernel>
struct Packer {
  void (*keys)(const PackedShape<Kernel>&, const TileRows&, float* staging, float* keys);
  bool (*values)(const PackedShape<Kernel>&, const TileRows&, float* values);
  void (*read)(const char* row, int head_dim, float* out);  // padded with zeros to kWidth

  template <typename T>
  static Packer of() {
    return {pack_keys<Kernel, T>, pack_values<Kernel, T>,
            [](const char* row, int head_dim, float* out) {
              read_row(reinterpret_cast<const T*>(row), head_dim, out);
            }};
  }
};

}  // namespace pagedattn::PAGEDATTN_ISA
