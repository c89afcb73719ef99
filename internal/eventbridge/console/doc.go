// Package console serves Eventbridge's console: web pages that show and change buses and
// subscribers.
//
// The pages are the embedded files below files/; there is no build step. They use only the API
// below /v1 of the process that serves them, and load nothing from other servers. The handler
// needs no token, because the files contain no data. The package imports no other package of
// Aviary.
package console
