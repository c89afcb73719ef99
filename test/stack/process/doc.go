// Package process starts and stops processes: servers that outlive this process, servers that end
// with it, and programs that run to their end. It also reserves ports and takes file locks.
package process
