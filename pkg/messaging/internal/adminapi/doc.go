// Package adminapi manages tenants, namespaces, topics and subscriptions over the brokers' admin API.
package adminapi
