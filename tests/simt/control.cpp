// Functions by which the tests control the SIMT layer itself; a library for a real device does not have them.
#include "simt.hpp"

#define QK_EXPORT extern "C" __attribute__((visibility("default")))

QK_EXPORT void qk_simt_seed(unsigned long long seed) { simt::set_seed(seed); }
QK_EXPORT const char* qk_simt_reports() { return simt::reports(); }
QK_EXPORT void qk_simt_clear() { simt::clear_reports(); }
QK_EXPORT int qk_simt_watches_memory() { return simt::watches_memory() ? 1 : 0; }
