package wire

import "errors"

// maxJoined is how large a message in parts may be: it is in memory until all parts have come. No
// effect of Redis is larger.
const maxJoined = 1 << 30

// ErrPartsMissing says that a part came whose earlier parts have not.
var ErrPartsMissing = errors.New("earlier parts of the message are missing")

var errLarge = errors.New("the parts of the message are larger than 1 GiB")

// PartJoiner joins the parts of the messages of a topic, which come in order. A message can come twice.
// The zero value is ready for use.
type PartJoiner struct {
	begin       int64 // position of the message, less one
	have, parts int
	payload     []byte
}

// Add takes a message. ok is false for a part with others behind it. Otherwise Add returns the
// payload, which is valid until the next call. The error is [ErrPartsMissing], or says that the
// message is larger than 1 GiB.
func (j *PartJoiner) Add(h *Header, payload []byte) (whole []byte, ok bool, err error) {
	if h.Parts <= 1 {
		*j = PartJoiner{}
		return payload, true, nil
	}
	if begin := h.Position - int64(h.Part); begin != j.begin || h.Parts != j.parts {
		*j = PartJoiner{begin: begin, parts: h.Parts}
	}
	switch {
	case h.Part > j.have+1:
		return nil, false, ErrPartsMissing
	case h.Part == j.have+1:
		if len(j.payload)+len(payload) > maxJoined {
			return nil, false, errLarge
		}
		j.payload = append(j.payload, payload...)
		j.have++
	}
	return j.payload, h.Part == h.Parts, nil
}
