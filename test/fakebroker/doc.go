// Package fakebroker is a server in memory that speaks Pulsar's binary protocol, for tests of
// faults that a real broker does not show on demand. README.md lists its simplifications.
//
//	s := fakebroker.Start(t)
//	s.CreateTopic("orders", 4)
//	hold := s.HoldReceipts("orders")
//	// produce with a client connected to s.URL()
//	require.NoError(t, hold.Wait(ctx, 1)) // the entry has arrived
//	hold.Release()                        // now the broker sends its receipt
package fakebroker
