package fakebroker

import (
	"bytes"
	"encoding/binary"
	"sort"
	"strings"
)

// partitionedMetadata answers with CommandPartitionedTopicMetadataResponse: partitions = 1,
// request_id = 2, response = 3, error = 4, message = 5.
func (c *conn) partitionedMetadata(body []byte) error {
	r, err := decodeTopicRequest(body)
	if err != nil {
		return err
	}
	name := canonical(r.topic)
	if c.s.strike(name, faultIgnore, OpPartitions) != nil {
		return nil
	}
	f := c.s.strike(name, faultFail, OpPartitions)
	code, text := TopicNotFound, "no topic "+name
	partitions, found := 0, f == nil
	switch {
	case f != nil:
		code, text = f.code, f.text
	case c.s.partition(name, false) != nil:
		// A single log, or one partition of a topic: asked by that name it has no partitions.
	case c.s.topics[name] != nil:
		partitions = c.s.topics[name].partitions
	case c.s.autoCreate:
		partitions = c.s.createTopic(name, c.s.partitionsFor(name)).partitions
	default:
		found = false
	}
	m := message(nil).num(2, r.requestID)
	if found {
		m = m.num(1, uint64(partitions)).num(3, 0)
	} else {
		m = m.num(3, partitionedMetadataFailed).num(4, uint64(code)).str(5, text)
	}
	c.send(CommandPartitionedMetadataResponse, m)
	return nil
}

// partitionsFor is the number of partitions of a topic made on demand.
func (s *Server) partitionsFor(name string) int {
	if _, index := splitPartition(name); index >= 0 {
		return 0
	}
	return s.autoPartitions
}

// lookup answers with CommandLookupTopicResponse: brokerServiceUrl = 1, response = 3, request_id =
// 4, authoritative = 5, error = 6, message = 7.
func (c *conn) lookup(body []byte) error {
	r, err := decodeTopicRequest(body)
	if err != nil {
		return err
	}
	name := canonical(r.topic)
	if c.s.strike(name, faultIgnore, OpLookup) != nil {
		return nil
	}
	m := message(nil).num(4, r.requestID)
	if f := c.s.strike(name, faultFail, OpLookup); f != nil {
		m = m.num(3, lookupFailed).num(6, uint64(f.code)).str(7, f.text)
	} else {
		m = m.str(1, c.s.URL()).num(3, lookupConnect).flag(5, true)
	}
	c.send(CommandLookupResponse, m)
	return nil
}

// topicsOfNamespace answers with CommandGetTopicsOfNamespaceResponse: request_id = 1, topics = 2.
// Partitions are listed one by one, as the broker does.
func (c *conn) topicsOfNamespace(body []byte) error {
	r, err := decodeNamespaceRequest(body)
	if err != nil {
		return err
	}
	m := message(nil).num(1, r.requestID)
	var names []string
	if r.mode != modeNonPersistent {
		for _, t := range c.s.topics {
			for _, p := range t.logs {
				if strings.HasPrefix(p.name, "persistent://"+r.namespace+"/") {
					names = append(names, p.name)
				}
			}
		}
	}
	sort.Strings(names)
	for _, name := range names {
		m = m.str(2, name)
	}
	c.send(CommandGetTopicsOfNamespaceResponse, m)
	return nil
}

// addSchema registers a schema as it was sent and returns its version, empty if there is no schema.
func (t *topic) addSchema(schema []byte) []byte {
	if len(schema) == 0 {
		return nil
	}
	version := -1
	for i, known := range t.schemas {
		if bytes.Equal(known, schema) {
			version = i
		}
	}
	if version < 0 {
		version = len(t.schemas)
		t.schemas = append(t.schemas, bytes.Clone(schema))
	}
	return binary.BigEndian.AppendUint64(nil, uint64(version))
}

// topicOf returns the topic of a topic's or partition's name, nil if there is none.
func (s *Server) topicOf(name string) *topic {
	name = canonical(name)
	if t := s.topics[name]; t != nil {
		return t
	}
	base, _ := splitPartition(name)
	return s.topics[base]
}

// getOrCreateSchema answers with CommandGetOrCreateSchemaResponse: request_id = 1, error_code = 2,
// error_message = 3, schema_version = 4. No compatibility is checked.
func (c *conn) getOrCreateSchema(body []byte) error {
	r, err := decodeSchemaRequest(body)
	if err != nil {
		return err
	}
	m := message(nil).num(1, r.requestID)
	if t := c.s.topicOf(r.topic); t != nil {
		m = m.bytes(4, t.addSchema(r.value))
	} else {
		m = m.num(2, uint64(TopicNotFound)).str(3, "no topic "+r.topic)
	}
	c.send(CommandGetOrCreateSchemaResponse, m)
	return nil
}

// getSchema answers with CommandGetSchemaResponse: request_id = 1, error_code = 2, error_message =
// 3, schema = 4, schema_version = 5.
func (c *conn) getSchema(body []byte) error {
	r, err := decodeSchemaRequest(body)
	if err != nil {
		return err
	}
	m := message(nil).num(1, r.requestID)
	var schemas [][]byte
	if t := c.s.topicOf(r.topic); t != nil {
		schemas = t.schemas
	}
	version := uint64(len(schemas)) - 1
	if len(r.value) == 8 {
		version = binary.BigEndian.Uint64(r.value)
	}
	if version < uint64(len(schemas)) {
		m = m.bytes(4, schemas[version]).bytes(5, binary.BigEndian.AppendUint64(nil, version))
	} else {
		m = m.num(2, uint64(TopicNotFound)).str(3, "no such schema")
	}
	c.send(CommandGetSchemaResponse, m)
	return nil
}
