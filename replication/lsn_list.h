/// Waiters in order of their LSN, equal ones first in, first out. Intrusive: a node has `lsn`, `next`,
/// `previous`.
/// Thread:   owner core
#pragma once

#include <tidelock/base/ids.h>

namespace tidelock {

template <class Node>
class LsnList {
 public:
  [[nodiscard]] Node* head() const { return head_; }
  /// Somebody waits for no more than `lsn`.
  [[nodiscard]] bool reached(Lsn lsn) const { return head_ != nullptr && head_->lsn <= lsn; }

  /// O(1) for the greatest LSN so far, which is the usual case.
  void insert(Node& node) {
    Node* after = tail_;
    while (after != nullptr && after->lsn > node.lsn) after = after->previous;
    node.previous = after;
    node.next = after != nullptr ? after->next : head_;
    (node.next != nullptr ? node.next->previous : tail_) = &node;
    (after != nullptr ? after->next : head_) = &node;
  }
  void remove(Node& node) {
    (node.next != nullptr ? node.next->previous : tail_) = node.previous;
    (node.previous != nullptr ? node.previous->next : head_) = node.next;
    node.next = node.previous = nullptr;
  }
  /// The first node if it waits for no more than `lsn`, taken out; else null.
  Node* pop_reached(Lsn lsn) {
    Node* const node = head_;
    if (node == nullptr || node->lsn > lsn) return nullptr;
    remove(*node);
    return node;
  }

 private:
  Node* head_ = nullptr;
  Node* tail_ = nullptr;
};

}  // namespace tidelock
