// Package measure meters time, CPU and memory, and makes the report of a scenario. It imports no
// other package of test/bench.
package measure
