// A libamdhip64 that has one function and lacks all others.
extern "C" int hipGetDeviceCount(int* count) { return *count = 0; }
