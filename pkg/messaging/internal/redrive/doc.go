// Package redrive publishes dead letters to the topics that they came from. It imports cluster and
// publish, but not consume.
package redrive
