// Package console serves Eventbridge's console: pages for browsers that show and change buses and
// subscribers.
//
// The pages are the files below files/, embedded as they are: there is no build step. They use only
// the API below /v1 of the process that serves them, and load nothing from elsewhere. The handler
// needs no token: it serves the same files to everyone, and the API asks for the token.
package console
