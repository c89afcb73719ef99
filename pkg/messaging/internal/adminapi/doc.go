// Package adminapi manages tenants, namespaces, topics and subscriptions by the brokers' admin
// API.
package adminapi
