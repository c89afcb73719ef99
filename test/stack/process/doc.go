// Package process starts and stops child processes, reserves ports and takes file locks. It must
// not import another package of test/stack.
package process
