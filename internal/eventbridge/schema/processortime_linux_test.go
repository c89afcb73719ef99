package schema_test

import "syscall"

// ofThread has Getrusage tell of the calling thread.
const ofThread = syscall.RUSAGE_THREAD
