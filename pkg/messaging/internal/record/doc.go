// Package record has what is published and received, and the errors that several packages return.
// The other packages of the library import it.
package record
