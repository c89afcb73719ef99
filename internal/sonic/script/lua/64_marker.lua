
-- sonic_marker zone marker: everything that the topic of a zone has up to a message is in the data of this primary of
-- a cluster. It is refused while this primary may lack something: who calls may not know yet that it was restarted or
-- has taken over.
always('sonic_marker', function(keys, args)
	if not c.ready then return NOT_READY end
	local moving = shards.use(keys[1])
	if moving then return moving end
	if #args ~= 2 then return {err = 'SONICARG zone marker'} end
	call('HSET', state(keys[1], 'mark'), args[1], args[2])
	return 1
end)
