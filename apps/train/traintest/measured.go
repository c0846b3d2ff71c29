package traintest

import "testing"

// Measured logs a number that a test found; larger is worse.
func Measured(t *testing.T, what string, value float64) {
	t.Helper()
	t.Logf("measured: %s = %.3g", what, value)
}
