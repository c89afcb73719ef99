
-- sonic_marker zone marker: everything that the topic of a zone has up to a message is in the data of this primary of
-- a cluster. It is refused while this primary may lack something: who calls may not know yet that it was restarted or
-- has taken over.
always('sonic_marker', 'ready', function(out, args)
	call('HSET', state(out, 'mark'), args[1], args[2])
	return 1
end)
