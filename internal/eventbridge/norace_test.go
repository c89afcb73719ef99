//go:build !race

package eventbridge_test

// slowedDown is how much longer the race detector makes it take.
const slowedDown = 1
