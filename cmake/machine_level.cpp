// Prints the level of the machine that builds, for -DQKCORE_ISA_LEVELS=machine.
#include <cstdio>

#include "../cpp/bind/cpu_level.hpp"

int main() { std::puts(qk::cpu::level().c_str()); }
