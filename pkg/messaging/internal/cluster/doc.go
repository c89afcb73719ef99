// Package cluster has the connections to one Pulsar cluster: configuration, credentials, lifetime,
// and calls that end with a context.
package cluster
