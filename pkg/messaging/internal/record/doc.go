// Package record has the types of records, messages and positions, and the errors that several
// packages return. It imports clientquirks, protofield and topicname.
package record
