package config

import (
	"cmp"
	"net"
	"strconv"
	"strings"
)

// CheckListen returns a fault at path unless address is one to listen on: "host:port", "[v6]:port"
// or ":port", the port 0 to 65535, where 0 lets the system choose.
func CheckListen(path, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		if _, err = strconv.ParseUint(port, 10, 16); err == nil {
			return nil
		}
	}
	return Fault(path, "must be host:port to listen on, such as 127.0.0.1:9090 or :9090, got %q", address)
}

// CheckApart returns a fault at path when a listener at address would take the port of the one at
// otherPath. It leaves addresses that are wrong by themselves to CheckListen.
func CheckApart(path, address, otherPath, other string) error {
	host, port, err := net.SplitHostPort(address)
	otherHost, otherPort, otherErr := net.SplitHostPort(other)
	every := func(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
	right := err == nil && otherErr == nil
	if right && port == otherPort && port != "0" && (host == otherHost || every(host) || every(otherHost)) {
		return Fault(path, "must be another address than %s, got %q for both", otherPath, address)
	}
	return nil
}

// Require returns a fault at path unless ok.
func Require(ok bool, path, format string, args ...any) error {
	if ok {
		return nil
	}
	return Fault(path, format, args...)
}

// CheckPositive returns a fault at path unless value is above zero.
func CheckPositive[T cmp.Ordered](path string, value T) error {
	var zero T
	return Require(value > zero, path, "must be > 0, got %v", value)
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

// CheckRange returns a fault at path unless value is from least to most.
func CheckRange[T cmp.Ordered](path string, value, least, most T) error {
	if value < least || value > most {
		return Fault(path, "must be from %v to %v, got %v", least, most, value)
	}
	return nil
}

// CheckAtLeast returns a fault at path when value is less than least.
func CheckAtLeast[T cmp.Ordered](path string, value, least T) error {
	if value < least {
		return Fault(path, "must be at least %v, got %v", least, value)
	}
	return nil
}
