package model

// These are the properties that follow an event from the bus' topic to the topics of subscribers.
const (
	// PropertyHops is how often the event has passed Eventbridge before; absent for 0.
	PropertyHops = "hops"
	// PropertyTenant is the name of the tenant that sent the event; absent without tenants.
	PropertyTenant = "tenant"
)

// CopyProperties copies these properties, where there are any, from one message to another.
func CopyProperties(to, from map[string]string) {
	for _, name := range [...]string{PropertyHops, PropertyTenant} {
		if value := from[name]; value != "" {
			to[name] = value
		}
	}
}
