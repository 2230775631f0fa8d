// What the driver's other libraries use of it.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

struct Stream;

// Nothing runs beside: held by each call.
extern std::recursive_mutex lock;
// The stream of a handle.
Stream *stream_of(void *handle);
// Puts work at the end of a stream.
void push(Stream *stream, std::function<void()> work);
// Does what is in a stream.
void drain(Stream *stream);
// Does work once, when all of the streams have got there, and before any goes on.
void meet(std::vector<Stream *> streams, std::function<void()> work);
// Counts what was asked for.
void count(const std::string &what);
// Whether so many bytes are in memory that a device has.
bool is_on_device(const void *at, size_t bytes);
// What this folder's `compile` makes of a source; false with what it said.
bool compile(const char *source, const char *library, char *said, size_t room);
// "soft-cuda:" and a library, in place of PTX.
extern const char IMAGE[];

#define EXPORT extern "C" __attribute__((visibility("default")))
#define LOCKED std::lock_guard<std::recursive_mutex> locked(lock)
