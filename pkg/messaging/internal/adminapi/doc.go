// Package adminapi manages tenants, namespaces, topics and subscriptions over the brokers' admin
// API. It imports cluster, but no package that publishes, reads or consumes.
package adminapi
