// Package httpserver makes HTTP servers for senders that are not known yet: it limits connections,
// headers, time and the memory of bodies before a sender is authenticated. Hosts are the names
// under which a server without authentication answers. Below it are refusal (error answers and their
// log), admission (bytes in flight, quotas), bearer (tokens) and suspension (refuses requests while
// a topic stores nothing).
package httpserver
