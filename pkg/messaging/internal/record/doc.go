// Package record has what is published and received: records, messages, their ids and positions,
// the properties of retries and dead letters, and the errors that several packages return. The
// other packages of the library import it.
package record
