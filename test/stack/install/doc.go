// Package install downloads the programs of servers, from Maven and as Debian packages, and
// reports each download before it begins. It must not import test/stack.
package install
