// Package httpserver makes HTTP servers for unknown senders. It limits connections, headers, time
// and the memory of bodies before a sender is authenticated. [Hosts] are the names in the header
// Host that a server without authentication accepts. Packages below it: refusal (error answers and
// their log), admission (bytes in flight and quotas), bearer (tokens), suspension (refuses requests
// while a topic stores nothing). It must not import a service.
package httpserver
