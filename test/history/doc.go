// Package history checks what was handled against what was stored: nothing is lost, nothing handled
// goes back in time, nothing stays behind. It knows neither servers nor clients: tests note what
// they see and ask at the end.
package history
