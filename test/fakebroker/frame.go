package fakebroker

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

const (
	// magicChecksum precedes the CRC-32C of an entry.
	magicChecksum = 0x0e01

	// framePadding is what a frame may hold besides the message: the same allowance as the
	// broker's.
	framePadding = 10 * 1024
)

var (
	errChecksum = errors.New("checksum mismatch")
	errNoMagic  = errors.New("entry without checksum")
)

// frame is one unit of the protocol:
//
//	[frame size][command size][command][entry]
//
// The sizes are big-endian 32-bit and do not count themselves. The entry is there only with SEND
// and MESSAGE.
type frame struct {
	command []byte
	entry   []byte
}

// readFrame reads one frame into memory of its own, which the caller may keep.
func readFrame(r *bufio.Reader, maxSize int) (frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	size := int(binary.BigEndian.Uint32(head[:]))
	if size < 4 || size > maxSize {
		return frame{}, fmt.Errorf("frame of %d bytes, at most %d allowed", size, maxSize)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return frame{}, err
	}
	n := int(binary.BigEndian.Uint32(body))
	if n > size-4 {
		return frame{}, fmt.Errorf("command of %d bytes in a frame of %d", n, size)
	}
	return frame{command: body[4 : 4+n], entry: body[4+n:]}, nil
}

// encodeFrame is the inverse of readFrame.
func encodeFrame(command, entry []byte) []byte {
	size := 4 + len(command) + len(entry)
	b := make([]byte, 0, 4+size)
	b = binary.BigEndian.AppendUint32(b, uint32(size))
	b = binary.BigEndian.AppendUint32(b, uint32(len(command)))
	b = append(b, command...)
	return append(b, entry...)
}

// splitEntry verifies an entry and cuts it into metadata and payload:
//
//	[magic][crc32c of the rest][metadata size][metadata][payload]
func splitEntry(entry []byte) (meta, payload []byte, err error) {
	if len(entry) < 10 || binary.BigEndian.Uint16(entry) != magicChecksum {
		return nil, nil, errNoMagic
	}
	if checksum(entry[6:]) != binary.BigEndian.Uint32(entry[2:]) {
		return nil, nil, errChecksum
	}
	n := int(binary.BigEndian.Uint32(entry[6:]))
	if n > len(entry)-10 {
		return nil, nil, fmt.Errorf("metadata of %d bytes in an entry of %d", n, len(entry))
	}
	return entry[10 : 10+n], entry[10+n:], nil
}

// joinEntry is the inverse of splitEntry.
func joinEntry(meta, payload []byte) []byte {
	b := make([]byte, 6, 10+len(meta)+len(payload))
	b = binary.BigEndian.AppendUint32(b, uint32(len(meta)))
	b = append(b, meta...)
	b = append(b, payload...)
	binary.BigEndian.PutUint16(b, magicChecksum)
	binary.BigEndian.PutUint32(b[2:], checksum(b[6:]))
	return b
}

// corrupted returns a copy of the entry whose checksum is wrong.
func corrupted(entry []byte) []byte {
	b := append([]byte(nil), entry...)
	b[2] ^= 0xff
	return b
}

func checksum(b []byte) uint32 {
	return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
}
