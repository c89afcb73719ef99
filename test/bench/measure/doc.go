// Package measure has meters of time, CPU and memory, and the report of a scenario.
package measure
