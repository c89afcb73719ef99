//go:build !linux

package schema_test

import "syscall"

// ofThread has Getrusage tell of the process, where threads are not told apart.
const ofThread = syscall.RUSAGE_SELF
