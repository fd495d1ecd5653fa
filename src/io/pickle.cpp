// The stack machine: one pass over the opcodes, every length compared with what is left.
#include "io/pickle.h"

#include <bit>
#include <cstring>
#include <utility>

#include "io/pickle_calls.h"
#include "io/tensor.h"
#include "mhla/error.h"

namespace mhla::io::pickle {
namespace {

class Machine {
 public:
  Machine(std::string_view bytes, const std::string& file) : bytes_(bytes), file_(file) {
    // Shared by every use; nothing can change them.
    for (const Kind kind : {Kind::none, Kind::boolean, Kind::boolean, Kind::tuple}) {
      result_.values.push_back({.kind = kind});
    }
    result_.values[kTrue].number = 1;
  }

  Pickle run() {
    while (step(static_cast<unsigned char>(take(1)[0]))) {
    }
    result_.root = pop();
    return std::move(result_);
  }

 private:
  static constexpr Id kNone = 0, kFalse = 1, kTrue = 2, kEmpty = 3;

  template <typename... Values>
  [[noreturn]] void corrupt(Values&&... values) const {
    fail(ErrorCode::corrupt_data, "io", "'", file_, "': pickle, byte ", at_, ": ",
         std::forward<Values>(values)..., "; the file is damaged, download or save it again");
  }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) {
      corrupt("truncated, ", count, " bytes expected and ", bytes_.size() - at_, " left");
    }
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) corrupt("truncated inside a name");
    const std::string_view text = take(end - at_);
    take(1);
    return text;
  }

  Id add(Value value) {
    if (result_.values.size() >= kMaxValues) corrupt("more than ", kMaxValues, " values");
    result_.values.push_back(std::move(value));
    return static_cast<Id>(result_.values.size() - 1);
  }
  void push(Id id) { stack_.push_back(id); }
  void push_new(Kind kind, std::int64_t integer = 0) {
    push(add({.kind = kind, .number = integer}));
  }
  void push_text(std::string_view text) {
    if (!is_utf8(text)) corrupt("a text that is not UTF-8: ", shown(text));
    push(add({.kind = Kind::text, .text = text}));
  }
  void push_tuple(std::vector<Id> items) {
    push(add({.kind = Kind::tuple, .items = std::move(items)}));
  }

  // Values below the last mark belong to something that is still being built.
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Id pop() {
    if (stack_.size() <= floor()) corrupt("nothing on the stack");
    const Id id = stack_.back();
    stack_.pop_back();
    return id;
  }
  Id top() const {
    if (stack_.size() <= floor()) corrupt("nothing on the stack");
    return stack_.back();
  }
  std::vector<Id> pop_to_mark() {
    if (marks_.empty()) corrupt("no mark on the stack");
    std::vector<Id> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()),
                          stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  std::vector<Id> pop_many(std::size_t count) {
    std::vector<Id> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }

  void append(const std::vector<Id>& items) {
    Value& list = result_.values[top()];
    if (list.kind != Kind::list) corrupt("appends to something that is not a list");
    list.items.insert(list.items.end(), items.begin(), items.end());
  }
  void set_items(const std::vector<Id>& items) {
    Value& dict = result_.values[top()];
    if (dict.kind != Kind::dict) corrupt("sets items of something that is not a dict");
    if (items.size() % 2 != 0) corrupt("a key without a value");
    dict.items.insert(dict.items.end(), items.begin(), items.end());
  }

  void put(std::uint64_t index) {
    // torch numbers consecutively; a number that skips ahead could ask for any amount of memory.
    if (index > memo_.size()) corrupt("memo entry ", index, " after ", memo_.size());
    if (index == memo_.size()) {
      memo_.push_back(top());
    } else {
      memo_[index] = top();
    }
  }
  void get(std::uint64_t index) {
    if (index >= memo_.size()) corrupt("memo entry ", index, " of ", memo_.size());
    push(memo_[index]);
  }

  void push_global(std::string_view module, std::string_view name) {
    push(add(global(module, name, file_)));
  }
  void push_call() {
    const Id arguments = pop(), function = pop();
    Result made = call(result_, function, arguments, file_);
    push(made.is_argument ? made.argument : add(std::move(made.made)));
  }
  // Attributes of an ordered dict are bookkeeping of torch (_metadata) and are passed over.
  void build() {
    const Id state = pop();
    Value& target = result_.values[top()];
    if (target.kind == Kind::object && result_[state].kind == Kind::dict) {
      target.items = {state};
    } else if (target.kind != Kind::dict) {
      corrupt("gives attributes to something that has none");
    }
  }
  void push_storage() {
    const Value& id = result_[pop()];
    const bool right = id.kind == Kind::tuple && id.items.size() == 5 &&
                       result_[id.items[0]].text == "storage" &&
                       result_[id.items[1]].kind == Kind::storage_class &&
                       result_[id.items[2]].kind == Kind::text &&
                       result_[id.items[4]].kind == Kind::integer;
    if (!right) corrupt("a persistent id that is no storage");
    Value storage{.kind = Kind::storage};
    storage.items.assign(id.items.begin() + 1, id.items.end());
    push(add(std::move(storage)));
  }
  void push_long(std::uint64_t bytes) {
    const std::string_view digits = take(bytes);
    if (bytes > sizeof(std::int64_t)) {
      push(add({.kind = Kind::text, .text = "(a long integer)"}));
      return;
    }
    // Two's complement, lowest byte first, sign in the last one.
    std::uint64_t value = !digits.empty() && (digits.back() & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    std::memcpy(&value, digits.data(), digits.size());
    push_new(Kind::integer, static_cast<std::int64_t>(value));
  }
  void push_real() {
    std::uint64_t bits = 0;
    for (const char c : take(8)) bits = bits << 8 | static_cast<unsigned char>(c);
    push(add({.kind = Kind::real, .real = std::bit_cast<double>(bits)}));
  }
  void push_bytes(std::uint64_t count) {
    take(count);
    push(add({.kind = Kind::text, .text = "(bytes)"}));
  }

  bool step(unsigned char opcode);
  bool scalar(unsigned char opcode);
  bool container(unsigned char opcode);

  std::string_view bytes_;
  const std::string& file_;
  std::size_t at_ = 0;
  std::vector<Id> stack_, memo_;
  std::vector<std::size_t> marks_;
  Pickle result_;
};

// Opcodes by the names of Python's pickletools. Each group says whether the opcode was its own.
bool Machine::scalar(unsigned char opcode) {
  switch (opcode) {
    case 'N': push(kNone); return true;                                       // NONE
    case 0x88: push(kTrue); return true;                                      // NEWTRUE
    case 0x89: push(kFalse); return true;                                     // NEWFALSE
    case 'J': push_new(Kind::integer, number<std::int32_t>()); return true;   // BININT
    case 'K': push_new(Kind::integer, number<std::uint8_t>()); return true;   // BININT1
    case 'M': push_new(Kind::integer, number<std::uint16_t>()); return true;  // BININT2
    case 0x8a: push_long(number<std::uint8_t>()); return true;                // LONG1
    case 'G': push_real(); return true;                                       // BINFLOAT
    case 'X': push_text(take(number<std::uint32_t>())); return true;          // BINUNICODE
    case 0x8c:                                                                // SHORT_BINUNICODE
    case 'U': push_text(take(number<std::uint8_t>())); return true;           // SHORT_BINSTRING
    case 'C': push_bytes(number<std::uint8_t>()); return true;                // SHORT_BINBYTES
    case 'B': push_bytes(number<std::uint32_t>()); return true;               // BINBYTES
    default: return false;
  }
}

bool Machine::container(unsigned char opcode) {
  switch (opcode) {
    case '(': marks_.push_back(stack_.size()); return true;  // MARK
    case ')': push(kEmpty); return true;                     // EMPTY_TUPLE
    case 't': push_tuple(pop_to_mark()); return true;        // TUPLE
    case 0x85: push_tuple(pop_many(1)); return true;         // TUPLE1
    case 0x86: push_tuple(pop_many(2)); return true;         // TUPLE2
    case 0x87: push_tuple(pop_many(3)); return true;         // TUPLE3
    case ']':                                                // EMPTY_LIST
    case 0x8f: push_new(Kind::list); return true;            // EMPTY_SET
    case 'a': append(pop_many(1)); return true;              // APPEND
    case 'e':                                                // APPENDS
    case 0x90: append(pop_to_mark()); return true;           // ADDITEMS
    case '}': push_new(Kind::dict); return true;             // EMPTY_DICT
    case 's': set_items(pop_many(2)); return true;           // SETITEM
    case 'u': set_items(pop_to_mark()); return true;         // SETITEMS
    case '0': pop(); return true;                            // POP
    default: return false;
  }
}

// False at the end of the pickle.
bool Machine::step(unsigned char opcode) {
  if (scalar(opcode) || container(opcode)) return true;
  switch (opcode) {
    case 0x80: {  // PROTO
      const auto version = number<std::uint8_t>();
      if (version > 5) corrupt("protocol ", int{version}, ", known are 0 to 5");
      return true;
    }
    case 0x95: take(sizeof(std::uint64_t)); return true;  // FRAME, only a hint
    case 'q': put(number<std::uint8_t>()); return true;   // BINPUT
    case 'r': put(number<std::uint32_t>()); return true;  // LONG_BINPUT
    case 0x94: put(memo_.size()); return true;            // MEMOIZE
    case 'h': get(number<std::uint8_t>()); return true;   // BINGET
    case 'j': get(number<std::uint32_t>()); return true;  // LONG_BINGET
    case 'c': {                                           // GLOBAL
      const std::string_view module = line(), name = line();
      push_global(module, name);
      return true;
    }
    case 0x93: {  // STACK_GLOBAL
      const Value &name = result_[pop()], &module = result_[pop()];
      if (name.kind != Kind::text || module.kind != Kind::text) corrupt("a name that is no text");
      push_global(module.text, name.text);
      return true;
    }
    case 'R':                               // REDUCE
    case 0x81: push_call(); return true;    // NEWOBJ
    case 'b': build(); return true;         // BUILD
    case 'Q': push_storage(); return true;  // BINPERSID
    case '.': return false;                 // STOP
    default: corrupt("opcode ", int{opcode}, ", which torch.save does not write");
  }
}

}  // namespace

Pickle parse(std::string_view bytes, const std::string& file) {
  if (bytes.size() > kMaxBytes) {
    fail(ErrorCode::unsupported, "io", "'", file, "': a pickle of ", bytes.size(),
         " bytes, at most ", kMaxBytes,
         " are read; save the tensors alone: torch.save(model.state_dict(), path)");
  }
  return Machine(bytes, file).run();
}

}  // namespace mhla::io::pickle
