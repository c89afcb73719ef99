package config

import (
	"net"
	"strconv"
	"strings"
)

// CheckListen returns a fault at path unless address is one to listen on: "host:port", "[v6]:port" or ":port", the port 0 to 65535, where 0 lets
// the system choose.
func CheckListen(path, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		if _, err = strconv.ParseUint(port, 10, 16); err == nil {
			return nil
		}
	}
	return Fault(path, "must be host:port to listen on, such as 127.0.0.1:9090 or :9090, got %q", address)
}

// CheckOneOf returns a fault at path unless value is one of allowed.
func CheckOneOf(path, value string, allowed ...string) error {
	for _, a := range allowed {
		if value == a {
			return nil
		}
	}
	return Fault(path, "must be one of %s, got %q", strings.Join(allowed, ", "), value)
}
