// Package redrive publishes dead letters to the topics that they came from.
package redrive
