// SPDX-License-Identifier: Apache-2.0
// The slots of a row as stored in it. There a group may have a narrower type than rules compute in,
// to save memory. A step widens it and finally rounds it once to the nearest, as it does with
// weights of such types. Nothing is lost on the way out and back in. So the slots that a store
// gives out (Find, ExportBatch, checkpoints) are of the compute type, and a store takes over slots
// of any types.
//
//     | group 0 | group 1 | ... |        each aligned to the size of its slots
//
// If all slots are of the compute type, their bytes are the slots themselves: a store then never
// calls the functions here, and its loops do no conversion.
#ifndef TF_EMBED_CC_CORE_ROWS_STORED_SLOTS_H_
#define TF_EMBED_CC_CORE_ROWS_STORED_SLOTS_H_

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "cc/core/base/data_type.h"
#include "cc/core/rules/rule_slots.h"

namespace tf_embed {

// Conversions of a slot of type S to and from the type of computation, C.
template <typename S, typename C>
struct StoredSlot {
  static C Load(S stored) { return static_cast<C>(Number<S>::Load(stored)); }
  static S Store(C computed) {
    return Number<S>::Store(static_cast<typename Number<S>::Compute>(computed));
  }
};

// Calls visit(TypeTag<S>(), group, offset, first) for each group: the type of its slots in a row,
// the byte of the stored slots at which it begins, and how many slots are before it. Returns the
// end of the last group. C: the compute type.
template <typename C, typename Visit>
size_t ForEachStoredGroup(const RuleSlots& rule, const Visit& visit) {
  size_t offset = 0;
  size_t first = 0;
  for (uint32_t i = 0; i < rule.num_groups; ++i) {
    const SlotGroup& group = rule.groups[i];
    const auto go_on = [&](auto tag) {
      using S = typename decltype(tag)::Type;
      offset = (offset + sizeof(S) - 1) / sizeof(S) * sizeof(S);
      visit(tag, group, offset, first);
      offset += group.width * sizeof(S);
    };
    switch (group.type) {
      case SlotType::kCompute:
        go_on(TypeTag<C>());
        break;
      case SlotType::kHalf:
        go_on(TypeTag<Half>());
        break;
      case SlotType::kBFloat16:
        go_on(TypeTag<BFloat16>());
        break;
    }
    first += group.width;
  }
  return offset;
}

// Calls function(TypeTag<C>()) with the compute type of slots of weights of `value_type`.
template <typename Function>
auto DispatchSlots(DataType value_type, const Function& function) {
  if (value_type == DataType::kDouble) return function(TypeTag<double>());
  return function(TypeTag<float>());
}

// The bytes of the slots of a row, without the padding to whole words.
inline size_t StoredSlotBytes(const RuleSlots& rule, DataType value_type) {
  return DispatchSlots(value_type, [&](auto tag) {
    return ForEachStoredGroup<typename decltype(tag)::Type>(rule, [](auto...) {});
  });
}

// Reads stored slots: `slots` [slots of a row]. `stored` is aligned to a word.
template <typename C>
void WidenSlots(const RuleSlots& rule, const char* stored, C* slots) {
  ForEachStoredGroup<C>(rule, [&](auto tag, const SlotGroup& group, size_t offset, size_t first) {
    using S = typename decltype(tag)::Type;
    const S* const from = reinterpret_cast<const S*>(stored + offset);
    for (uint32_t i = 0; i < group.width; ++i) slots[first + i] = StoredSlot<S, C>::Load(from[i]);
  });
}

// Writes slots, rounded to the nearest.
template <typename C>
void NarrowSlots(const RuleSlots& rule, const C* slots, char* stored) {
  ForEachStoredGroup<C>(rule, [&](auto tag, const SlotGroup& group, size_t offset, size_t first) {
    using S = typename decltype(tag)::Type;
    S* const to = reinterpret_cast<S*>(stored + offset);
    for (uint32_t i = 0; i < group.width; ++i) to[i] = StoredSlot<S, C>::Store(slots[first + i]);
  });
}

// The same, for slots of weights of `value_type`.
inline void WidenSlots(const RuleSlots& rule, DataType value_type, const char* stored,
                       char* slots) {
  DispatchSlots(value_type, [&](auto tag) {
    WidenSlots(rule, stored, reinterpret_cast<typename decltype(tag)::Type*>(slots));
  });
}
inline void NarrowSlots(const RuleSlots& rule, DataType value_type, const char* slots,
                        char* stored) {
  DispatchSlots(value_type, [&](auto tag) {
    NarrowSlots(rule, reinterpret_cast<const typename decltype(tag)::Type*>(slots), stored);
  });
}

// Writes the slots of a new row.
template <typename C>
void StoreInitialSlots(const RuleSlots& rule, char* stored) {
  ForEachStoredGroup<C>(rule, [&](auto tag, const SlotGroup& group, size_t offset, size_t) {
    using S = typename decltype(tag)::Type;
    std::fill_n(reinterpret_cast<S*>(stored + offset), group.width,
                StoredSlot<S, C>::Store(static_cast<C>(group.initial_value)));
  });
}

// The place of a slot in rows, and a function that reads it there in one access, whatever other
// threads write.
struct SlotPlace {
  size_t offset = 0;  // in the stored slots
  double (*load)(const char* slot) = nullptr;

  // REQUIRES: `slot` is below the slots of a row.
  template <typename C>
  static SlotPlace Of(const RuleSlots& rule, size_t slot) {
    SlotPlace place;
    ForEachStoredGroup<C>(rule, [&](auto tag, const SlotGroup& group, size_t offset, size_t first) {
      using S = typename decltype(tag)::Type;
      if (slot < first || slot - first >= group.width) return;
      place.offset = offset + (slot - first) * sizeof(S);
      place.load = [](const char* at) {
        S stored;
        __atomic_load(reinterpret_cast<const S*>(at), &stored, __ATOMIC_RELAXED);
        return static_cast<double>(StoredSlot<S, C>::Load(stored));
      };
    });
    return place;
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_ROWS_STORED_SLOTS_H_
