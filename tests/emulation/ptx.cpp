// Parses the text of asm statements and runs them, instruction by instruction.
#include "ptx.h"

#include <cctype>
#include <cstdlib>
#include <map>

#include "emulator.h"
#include "instructions.h"

namespace emulator {
namespace {

enum Special { cluster_rank };

class Parser {
 public:
  explicit Parser(const char* text) : at_(text) {}

  std::vector<Instruction> parse() {
    std::vector<Instruction> found;
    while (skip(), *at_ != 0) {
      if (*at_ == '{' || *at_ == '}' || *at_ == ';') {
        ++at_;
      } else if (*at_ == '.') {
        declare();
      } else {
        found.push_back(instruction());
      }
    }
    return found;
  }
  int locals() const { return static_cast<int>(locals_.size()); }

 private:
  void skip() {
    while (std::isspace(static_cast<unsigned char>(*at_))) ++at_;
  }
  bool take(char c) {
    skip();
    if (*at_ != c) return false;
    ++at_;
    return true;
  }
  std::string word() {
    skip();
    std::string text;
    while (std::isalnum(static_cast<unsigned char>(*at_)) || *at_ == '_' || *at_ == '.' ||
           *at_ == ':') {
      text += *at_++;
    }
    if (text.empty()) stop(std::string("cannot read PTX at: ") + at_);
    return text;
  }
  // .reg .b64 name, ...;
  void declare() {
    if (word() != ".reg") stop("a declaration that is not of registers");
    word();
    do {
      const int index = locals();
      locals_[word()] = index;
    } while (take(','));
    take(';');
    if (locals() > 8) stop("too many registers in an asm statement");
  }
  Instruction instruction() {
    Instruction result;
    if (take('@')) {
      result.negated = take('!');
      result.predicate = local(word());
    }
    result.name = word();
    if (!take(';')) {
      do {
        result.arguments.push_back(argument());
      } while (take(','));
      if (!take(';')) stop("no semicolon after " + result.name);
    }
    decode(result);
    return result;
  }
  Argument argument() {
    skip();
    Argument result;
    if (*at_ == '{' || *at_ == '[') {
      const char close = *at_ == '{' ? '}' : ']';
      result.kind = *at_++ == '{' ? Argument::list : Argument::address;
      do {
        result.items.push_back(argument());
        if (take('+')) {
          const Argument offset = argument();
          result.value = offset.value;
        }
      } while (take(','));
      if (!take(close)) stop("an open bracket in PTX");
    } else if (*at_ == '%' && std::isdigit(static_cast<unsigned char>(at_[1]))) {
      char* end;
      result.kind = Argument::operand;
      result.index = static_cast<int>(std::strtol(at_ + 1, &end, 10));
      at_ = end;
    } else if (*at_ == '%') {
      at_ += at_[1] == '%' ? 2 : 1;
      const std::string name = word();
      if (name != "cluster_ctarank") stop("unknown register %" + name);
      result.kind = Argument::special;
      result.index = cluster_rank;
    } else if (std::isdigit(static_cast<unsigned char>(*at_)) || *at_ == '-') {
      char* end;
      result.kind = Argument::immediate;
      result.value = static_cast<std::uint64_t>(std::strtoll(at_, &end, 0));
      if (*end == '.') std::strtod(at_, &end);  // of createpolicy, which nobody reads
      at_ = end;
    } else {
      const std::string name = word();
      if (name == "_") return result;
      result.kind = Argument::local;
      result.index = local(name);
    }
    return result;
  }
  int local(const std::string& name) const {
    const auto found = locals_.find(name);
    if (found == locals_.end()) stop("unknown register " + name + " in an asm statement");
    return found->second;
  }

  const char* at_;
  std::map<std::string, int> locals_;
};

}  // namespace

bool Instruction::has(const char* modifier) const {
  const std::string wanted = std::string(".") + modifier;
  for (std::size_t at = name.find(wanted); at != std::string::npos;
       at = name.find(wanted, at + 1)) {
    const std::size_t end = at + wanted.size();
    if (end == name.size() || name[end] == '.' || name[end] == ':') return true;
  }
  return false;
}

Code::Code(const char* text) {
  Parser parser(text);
  instructions_ = parser.parse();
  locals_ = parser.locals();
}

void Code::run(Operand* operands) const {
  Frame frame;
  frame.operands = operands;
  for (const Instruction& instruction : instructions_) {
    if (instruction.predicate >= 0 &&
        (frame.locals[instruction.predicate] != 0) == instruction.negated) {
      continue;
    }
    instruction.handler(instruction, frame);
  }
}

std::uint64_t Frame::read(const Argument& argument) const {
  switch (argument.kind) {
    case Argument::operand: return operands[argument.index].bits;
    case Argument::local: return locals[argument.index];
    case Argument::immediate: return argument.value;
    case Argument::special: return static_cast<std::uint64_t>(current->block->rank);
    case Argument::address: return read(argument.items[0]) + argument.value;
    default: stop("an argument without a value");
  }
}
float Frame::read_float(const Argument& argument) const {
  return bits_to<float>(static_cast<std::uint32_t>(read(argument)));
}
void Frame::write(const Argument& argument, std::uint64_t bits) {
  if (argument.kind == Argument::local) {
    locals[argument.index] = bits;
  } else if (argument.kind == Argument::operand) {
    Operand& operand = operands[argument.index];
    if (operand.to == nullptr) stop("an instruction writes to an input");
    operand.bits = bits;
    std::memcpy(operand.to, &bits, operand.size);
  } else if (argument.kind != Argument::sink) {
    stop("an instruction writes to a constant");
  }
}

}  // namespace emulator
