// Package cluster has the connections to one Pulsar cluster: configuration, credentials, lifetime,
// and calls that end with a context. It imports ask, auth, clientquirks and record; all packages
// that publish, read or consume import it.
package cluster
