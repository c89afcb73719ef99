// Package process runs the processes of the stack: those of this process and those that outlive it,
// the server of a test, which can be killed and started again, and programs that end by themselves;
// with the ports and locks that processes of one machine share.
package process
