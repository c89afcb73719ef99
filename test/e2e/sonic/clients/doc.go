// Package clients runs Redis clients against an endpoint: go-redis, redis-py, Lettuce (Java) and
// ioredis (Node). Each client has a program below this folder. Its arguments are the URL of the
// endpoint, the version of the protocol (2 or 3) and a prefix for keys. It prints a line for each
// check, "ok NAME" or "FAILED NAME: reason"; its exit status is not 0 if a check failed. All
// programs have the checks of [Checks]. Versions and digests of downloads are pinned.
package clients
