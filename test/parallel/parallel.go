// Package parallel says how many tests of a package run at a time.
package parallel

import (
	"flag"
	"strconv"
)

// Tests lets up to n parallel tests run at a time, unless the command line has -parallel. go test
// runs one per processor, and tests with servers wait most of the time. A TestMain calls it first:
// the command line is read later.
func Tests(n int) {
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err)
	}
}
