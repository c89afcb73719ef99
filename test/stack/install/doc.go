// Package install fetches what servers need, distributions of the Maven repository and Debian
// packages, and says before what it would fetch.
package install
