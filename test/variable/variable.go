// Package variable reads the environment variables of tests, such as seeds and durations of long
// runs. It imports nothing of the repository.
package variable

import (
	"os"
	"strconv"
	"testing"
)

// Number returns the number that an environment variable has, or other if it is not set or empty.
func Number(t testing.TB, name string, other uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return other
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
