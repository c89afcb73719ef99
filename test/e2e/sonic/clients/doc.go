// Package clients runs stock Redis clients against an endpoint: go-redis, redis-py, Lettuce (Java)
// and ioredis (Node).
//
// Each has a program of its own below this folder, which takes the endpoint's URL, the version of
// the protocol (2 or 3) and a prefix for its keys. It prints a line per check, "ok NAME" or "FAILED
// NAME: why", and its exit status is not 0 when one has failed. The checks have the same names in
// all of them, see [Checks]. Versions are pinned, with the digests of what is fetched; packages are
// kept in the user's cache folder.
package clients
