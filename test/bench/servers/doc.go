// Package servers runs the brokers and services that scenarios measure, and asks them for figures.
package servers
