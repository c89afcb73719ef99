package kafka

import (
	"errors"
	"fmt"
)

// checkTopic returns what is wrong with the name of a topic, by Kafka's rules.
func checkTopic(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty")
	case len(name) > 249:
		return errors.New("it is longer than 249 characters")
	case name == "." || name == "..":
		return errors.New("it is not allowed")
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return fmt.Errorf("it may hold letters, digits, '.', '_' and '-' only, not %q", c)
		}
	}
	return nil
}
